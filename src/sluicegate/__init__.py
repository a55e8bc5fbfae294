"""Sluicegate: a self-hosted LLM gateway whose budgets cannot be overspent."""

__version__ = "0.1.0"
