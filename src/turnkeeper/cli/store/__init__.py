"""Commands over the folder of a store, without its server: ``collect``, ``export``, ``delete``, ``vacuum``."""
