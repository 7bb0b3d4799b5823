"""Known mistakes, each as a function that makes it: judges tell by them what went wrong."""
