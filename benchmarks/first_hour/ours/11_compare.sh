# Compare two policies task by task, with an interval. shows: A - B
evolvent eval xs --worlds lookup --limit 4 --output_dir runs/a
evolvent eval s --worlds lookup --limit 4 --output_dir runs/b
evolvent bench compare runs/a runs/b
