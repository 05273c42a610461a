"""What builders and runners share: who made a container, where an engine answers, and what its failures mean."""
