#compdef sidecar
# Completion of sidecar for zsh: source <(sidecar completion zsh), behind compinit
_sidecar() {
    local line files=0
    local -a candidates
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            files=1
        else
            candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#candidates} )) && _describe sidecar candidates
    if (( files )); then
        compset -P '--*='
        _files
    fi
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _sidecar "$@"
else
    compdef _sidecar sidecar
fi
