"""Data sets: rows of several shapes, in tables and files, fitted on all cores."""

from brim.batch.shapes import Shape
from brim.batch.stages import Counter, Fitter, FitterOptions
from brim.fitting.api import FitOptions

__all__ = ["Counter", "FitOptions", "Fitter", "FitterOptions", "Shape"]
