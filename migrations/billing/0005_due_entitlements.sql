-- What every organisation is due by default: the features of its ladder's lowest rung.
CREATE VIEW billing.due_entitlements AS
SELECT entry.organisation_id, features.feature, features.plan_id, features.allowance
FROM (
    SELECT DISTINCT ON (organisations.id)
        organisations.id AS organisation_id, ladders.plan_id
    FROM platform.organisations
    JOIN billing.default_plan_ladders AS ladders USING (org_type)
    ORDER BY organisations.id, ladders.rung
) AS entry
JOIN billing.plan_features AS features USING (plan_id);
