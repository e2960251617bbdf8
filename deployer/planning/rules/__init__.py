"""Rules between flags, environment, model and card, per release: the rules are data in the YAML files beside this one."""
