"""Controls over functions that the lessons have shown in plain code first."""
