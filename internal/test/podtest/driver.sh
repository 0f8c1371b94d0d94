# Runs the commands of one page. It reads requests line by line, and responds to each with a line on descriptor 3.
declare -A __job
mapfile -d '' -t __env < <(env -0)
while read -r __verb __file __name; do
  case $__verb in
    run) # runs a file of commands in this shell, so that cd and variables remain
      __failed=0
      trap '__failed=$?' ERR
      source "$__file" </dev/null >"$__file.out" 2>&1 3>&-
      __last=$?
      trap - ERR
      echo "$__last $__failed" >&3
      ;;
    start) # runs a file of commands in another shell, as in another terminal in the same folder
      if [ -n "${__job[$__name]-}" ]; then
        kill -TERM -- "-${__job[$__name]}" 2>/dev/null
        while kill -0 -- "-${__job[$__name]}" 2>/dev/null; do sleep 0.02; done
      fi
      env -i "${__env[@]}" setsid bash "$__file" </dev/null >"$__file.out" 2>&1 3>&- &
      __job[$__name]=$!
      echo "$! 0" >&3
      ;;
  esac
done
