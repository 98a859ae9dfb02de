"""Jobs: pods are made until enough of them have succeeded, each counted once and only once."""
