"""Diagnosis of this machine: sections that read files and ask programs, each within a time limit."""
