package admin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

const (
	// rulesChunk is how much of the rules is in memory at once, in bytes.
	rulesChunk = 32 << 10
	// chunkTime is how long a reader may take for it. Others wait.
	chunkTime = 3 * time.Second
)

// rules answers GET /rules: the state of the last load, and all rules.
func (h *handler) rules(w http.ResponseWriter, _ *http.Request) {
	set := h.Rules.Set()
	status, err := json.MarshalIndent(h.Rules.Status(), "", "  ")
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	header(w, http.StatusOK, "application/json")
	b := bufio.NewWriterSize(&patient{w: w, c: http.NewResponseController(w)}, rulesChunk)
	_, _ = b.Write(bytes.TrimSuffix(status, []byte("\n}"))) // b keeps the error
	_, _ = b.WriteString(",\n  \"rules\": ")
	if set == nil {
		_, _ = b.WriteString("null")
	} else if set.WriteJSON(b, "  ", "  ") != nil {
		return // the client has gone, or reads too slowly: it sees that the end is missing
	}
	_, _ = b.WriteString("\n}\n")
	_ = b.Flush()
}

// patient gives each Write its time.
type patient struct {
	w io.Writer
	c *http.ResponseController
}

// Write implements io.Writer.
func (p *patient) Write(text []byte) (int, error) {
	_ = p.c.SetWriteDeadline(time.Now().Add(chunkTime)) // without it, the server's own deadline holds
	return p.w.Write(text)
}
