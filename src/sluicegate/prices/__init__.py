"""What models cost that nobody has said a price for: the bundled catalogue, and how a newer one is made of what genai-prices publishes."""
