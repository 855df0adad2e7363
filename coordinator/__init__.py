"""The study's side: collects privatised releases, pools estimates, draws figures."""
