-- Publishes a set of rules unless another one was published since the publisher looked.
--
-- KEYS[1]  the hash of the set: see published.go
-- ARGV[1]  `current` as the publisher saw it, '' for none
-- ARGV[2]  the content's hash
-- ARGV[3]  what is known of the set, JSON
-- ARGV[4]  its files, compressed
-- answer   the new version; 0 if `current` is another
local key = KEYS[1]
local current = redis.call('HGET', key, 'current') or ''
if current ~= ARGV[1] then return 0 end
local version = (tonumber(string.match(current, '^%d+')) or 0) + 1
redis.call('HSET', key, 'current', version .. ' ' .. ARGV[2], 'info', ARGV[3], 'files', ARGV[4])
redis.pcall('PUBLISH', key, version) -- a hint: who may not publish it has published the set all the same
return version
