"""Configuration: each option declared once, checked, and resolved into one frozen value.

The parts are imported by their modules, since help needs `turnkeeper.config.option` alone and `resolve` imports what
the rules judge.
"""
