-- Whether the record is whole and consistent: each check with the number of problems it finds.
SELECT check, problems, meaning FROM audit ORDER BY check
