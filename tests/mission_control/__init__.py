"""Mission Control: a sample application and the packages that test it."""
