"""Diagnosis of this machine: sections that read files and run programs, each with a time limit."""
