"""One small module for each framework and data engine; each needs only its own package."""
