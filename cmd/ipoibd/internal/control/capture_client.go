package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"ipoibd/cmd/ipoibd/internal/capture"
)

// completeTimeout is how long the daemon may take to complete a capture file.
const completeTimeout = 5 * time.Second

// errIncomplete reports that the file ends where the connection did.
var errIncomplete = errors.New("the capture is incomplete: the daemon was killed, " +
	"or closed the connection because the output accepted no data")

// GetCapture copies a capture file to out until it is complete. When ctx ends, it has the daemon
// complete the file.
func GetCapture(ctx context.Context, path string, q *capture.Request, out io.Writer) (sum capture.Summary, err error) {
	if err := GetEvents(ctx, path, math.MaxUint64, false, nil); err != nil { // the daemon does not answer
		return sum, err
	}
	body, err := json.Marshal(q)
	if err != nil {
		return sum, err
	}
	var conn net.Conn
	whole, cancel := context.WithCancel(httptrace.WithClientTrace(context.WithoutCancel(ctx), &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn },
	}))
	defer cancel()
	resp, err := do(whole, viewTimeout, path, http.MethodPost, "/v1/capture", bytes.NewReader(body), nil)
	if err != nil {
		return sum, err
	}
	defer resp.Body.Close()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(completeTimeout, cancel)
		if c, ok := conn.(*sender); ok {
			_ = c.CloseWrite() // fails if the daemon has exited, which the copy notices
		}
	})()
	if _, err = io.Copy(out, captureBody{resp.Body}); err != nil {
		return sum, err
	}
	sum.Packets, err = strconv.ParseUint(resp.Trailer.Get(trailerPackets), 10, 64)
	if err == nil {
		sum.Lost, err = strconv.ParseUint(resp.Trailer.Get(trailerLost), 10, 64)
	}
	return sum, err
}

// captureBody marks the errors of the connection, unlike the errors of the output.
type captureBody struct{ io.Reader }

func (b captureBody) Read(p []byte) (n int, err error) {
	if n, err = b.Reader.Read(p); err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w (%w)", errIncomplete, err)
	}
	return n, err
}
