"""Write a record as text, JSON, JUnit, Markdown or HTML. Nothing here runs an image or judges."""
