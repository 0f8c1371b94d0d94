-- Decides the requests of the batch in order, each as a whole, and writes the changed states.

local decide_slowly
local first, request = 1, 0 -- index in the batch of the request's first hit, and number of the request
for at = 1, #ARGV[3], 8 do
  request = request + 1
  local number = unpack_from('<d', ARGV[3], at)
  local plan = plans[number] or plan_at(number)
  if not (plan.is_quick and decide_quickly(plan, first, request)) then
    decide_slowly = decide_slowly or slowly()
    decide_slowly(plan, first, request)
  end
  first = first + plan.count
end

for k = 1, #KEYS do
  local lasts = after[k]
  if lasts and state[k] then
    write(KEYS[k], state[k], found[k], lasts)
  elseif lasts and found[k] then
    call('DEL', KEYS[k])
  end
end

-- Deletes unreadable states that no charge has replaced, and counts restarts and cuts.
local restarts, cut = 0, 0
if next(restarted) or next(cuts) then
  for k = 1, #KEYS do
    local how = restarted[KEYS[k]]
    if how == 'dropped' and state[k] and state[k] == found[k] then call('DEL', KEYS[k]) end
    if how then restarts = restarts + 1 end
    if cuts[KEYS[k]] then cut = cut + 1 end
  end
end

if ARGV[2] ~= '' then
  for k, net in pairs(refunded) do
    if net > 0 then try('PUBLISH', ARGV[2], KEYS[k]) end -- decide even if the user may not publish
  end
end

if stamped then
  size = size + 1
  results[size] = now
end
local parts = {}
for from = 1, size, 1000 do
  local last = min(from + 999, size)
  parts[#parts + 1] = pack('<' .. rep('d', last - from + 1), unpack(results, from, last))
end
local text = parts[2] and table.concat(parts) or parts[1]
if #failures + restarts + cut == 0 and not has_charges then return text end
return {text, failures, now, restarts, cut}
