#compdef weir
# Completion of weir for zsh: source <(weir completion zsh), behind compinit
_weir() {
    local line files=0
    local -a candidates
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            files=1
        else
            candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#candidates} )) && _describe weir candidates
    if (( files )); then
        compset -P '--*='
        _files
    fi
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _weir "$@"
else
    compdef _weir weir
fi
