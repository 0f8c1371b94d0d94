-- Publishes a set of rules, unless another set was published since the publisher read the current one.
--
-- KEYS[1]  the hash of the set: see published.go
-- ARGV[1]  `current` as the publisher read it, '' for none
-- ARGV[2]  the content's hash
-- ARGV[3]  `info` of the set, JSON
-- ARGV[4]  its files, compressed
-- returns  the new version; 0 if `current` is no longer ARGV[1]
local key = KEYS[1]
local current = redis.call('HGET', key, 'current') or ''
if current ~= ARGV[1] then return 0 end
local version = (tonumber(string.match(current, '^%d+')) or 0) + 1
redis.call('HSET', key, 'current', version .. ' ' .. ARGV[2], 'info', ARGV[3], 'files', ARGV[4])
redis.pcall('PUBLISH', key, version) -- only a hint: the set is published even if this fails
return version
