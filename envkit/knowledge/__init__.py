"""What is known of the world's failures: rows with their messages, and one table per concept, each with its sources."""
