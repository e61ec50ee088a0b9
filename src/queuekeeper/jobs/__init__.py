"""Plans, approves, runs, watches, undoes and reports work that changes data, for jobs of every kind."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
