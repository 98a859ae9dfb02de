"""Objects as table rows, for the output of commands and for the Table responses of the local API server."""
