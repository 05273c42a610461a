"""Read inventories of several tools into one form."""
