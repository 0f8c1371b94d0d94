-- Reads the boosts if they have changed.
--
-- KEYS[1]  the boosts: a revision, a line feed, and the boosts in JSON
-- ARGV[1]  the revision that is known, '' for that there are none
-- answer   nil if that is the one; else the boosts, '' for none
local value = redis.call('GET', KEYS[1]) or ''
if string.match(value, '^[^\n]*') == ARGV[1] then return false end
return value
