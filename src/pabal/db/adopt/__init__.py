"""Take over tables of the specification that exist already, with their rows."""
