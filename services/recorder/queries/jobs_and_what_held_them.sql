-- Offline jobs: how far each is, how many items failed, and for how many seconds each cause held it.
SELECT job, model, state, items, completed, rejected + expired + failed + cancelled AS not_completed, not_run,
    mapApply((cause, us) -> (cause, round(us / 1e6, 1)), held_us) AS held_s
FROM jobs
ORDER BY submitted_at, job
