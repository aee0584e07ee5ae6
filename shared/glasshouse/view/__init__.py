"""`glasshouse view`: a page that shows runs and their rollouts while they are trained.

    run directories ──► run_reader, rollout_index ──► rollout_query, compare ──► app ──► browser

discovery.py        which folders are runs and studies; a run's id in URLs
checked_lines.py    reads metrics and events as they grow
run_reader.py       one run: configuration, metrics, events, monitor results, status, damage
run_measures.py     held-out accuracy and measures of monitorability; run_facts.py: when, how, versions
verdict.py          what came out of a run or of several arms, in a sentence
rollout_index.py    a compact index of every rollout, in a cache outside the run
rollout_query.py    filters, search, histogram: pure functions over the index
rollout_details.py  one rollout, group or problem in full
monitored.py        the rollouts of `glasshouse monitor` as rows of the same shape
text_monitors.py    the monitors that score a rollout's text without a model
highlights.py       three rollouts worth reading
suspicion.py        why a rollout deserves a closer look
compare.py          several runs: config differences, arms, curves; studies.py: a study's questions
library.py          all runs that a server shows, with their indexes
app.py              HTTP and server-sent events; security.py: host check, token, headers
snapshot.py         what `glasshouse report` writes into its file: the same answers, of bounded size
front_end.py        reads assets/, the built front end (sources: shared/view_frontend, `make view-assets`)

Nothing here writes into a run directory, and the server does not import torch.
"""
