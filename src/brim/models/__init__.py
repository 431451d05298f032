"""Facts about models: names, windows and prices."""
