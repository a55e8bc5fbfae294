"""Configuration: the schema of the file, reading it, compiling it to the policy, and showing what it means."""

from sluicegate.config.fields import ConfigError, Problem
from sluicegate.config.load import EXAMPLE, Loaded, load, load_text
from sluicegate.config.schema import Config

__all__ = ["EXAMPLE", "Config", "ConfigError", "Loaded", "Problem", "load", "load_text"]
