"""Write a record as text, JSON, JUnit, Markdown, HTML or SARIF. Nothing here runs an image or judges."""
