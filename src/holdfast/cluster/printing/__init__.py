"""Objects as the rows of a table: what the commands print, and what the local API answers kubectl with."""
