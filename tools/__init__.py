"""Generators of the reference pages. They stay in the repository: nothing that ships needs them."""
