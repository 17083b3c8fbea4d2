// Package protocol is the protocol between a test and the agent in its guest:
// JSON values, one per line, on a virtio serial port.
//
// The guest starts by sending one [Reply] with ID 0 when it is ready. (If it cannot become ready,
// it reports the reason on its console and exits.) Then the test sends requests, each with an ID of
// its choice, from 1, and gets replies: for Start any number of replies with output and one with
// Done at the end of the process; for Put and Signal one with Done. Replies to different requests
// may interleave.
package protocol

import (
	"bufio"
	"encoding/json"
	"io"
)

// Port is the name of the virtio serial port.
const Port = "ipoibd.agent"

// MaxChunk bounds the data in one message, in bytes: the capacity of a pipe.
const MaxChunk = 64 << 10

// maxLine bounds a line that is read, in bytes: a chunk in base64 and room for
// the rest, such as the arguments of a program.
const maxLine = 4 * MaxChunk

// Request is a request; exactly one of its pointers is set.
type Request struct {
	ID     uint32  `json:"id"`
	Start  *Start  `json:"start,omitempty"`
	Signal *Signal `json:"signal,omitempty"`
	Put    *Put    `json:"put,omitempty"`
}

// Start starts a program.
type Start struct {
	Args []string `json:"args"` // the first is its path, or a name in PATH
	Env  []string `json:"env"`  // besides the agent's
}

// Signal sends a signal to a process that Start started.
type Signal struct {
	ID     uint32 `json:"id"`     // of the request
	Number int    `json:"number"` // signal(7)
}

// Put writes a file, or appends to it; its folder is made.
type Put struct {
	Path   string `json:"path"`
	Data   []byte `json:"data"` // at most MaxChunk
	Append bool   `json:"append"`
	Mode   uint32 `json:"mode"` // permissions
}

// Reply is the agent's reply to a request.
type Reply struct {
	ID   uint32 `json:"id"`
	Out  []byte `json:"out,omitempty"` // of the standard output, at most MaxChunk
	Err  []byte `json:"err,omitempty"` // of the standard error, at most MaxChunk
	Done *Done  `json:"done,omitempty"`
}

// Done ends a request.
type Done struct {
	Code   int    `json:"code"`   // exit status
	Signal int    `json:"signal"` // that killed the process, or 0
	Error  string `json:"error"`  // why the request could not be carried out
}

// Reader reads the lines of the other side. It is of no use after an error.
type Reader struct{ lines *bufio.Scanner }

// NewReader returns a Reader of r, which nothing else may read.
func NewReader(r io.Reader) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	return &Reader{lines}
}

// Read waits for the next line and decodes it into v. It returns io.EOF at the
// end.
func (r *Reader) Read(v any) error {
	if !r.lines.Scan() {
		if err := r.lines.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	return json.Unmarshal(r.lines.Bytes(), v)
}

// Write writes a value as a line, in one call.
func Write(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
