"""Configuration: each option declared once, checked, and resolved into one frozen value."""

from turnkeeper.config.parser import add_arguments
from turnkeeper.config.resolve import ResolvedConfig, resolve_command_line

__all__ = ["ResolvedConfig", "add_arguments", "resolve_command_line"]
