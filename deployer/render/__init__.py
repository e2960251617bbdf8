"""Pure rendering: a resolved profile becomes argv, a unit file and the bundle of one release."""
