"""Programs for people who work on Octavo; nothing here is installed with it."""
