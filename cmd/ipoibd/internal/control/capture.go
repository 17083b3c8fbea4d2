package control

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"ipoibd/cmd/ipoibd/internal/capture"
)

// captureStall is how long the client of a capture may read nothing, for example because it is
// stopped, before its connection is closed. Meanwhile packets are lost for it alone.
const captureStall = 30 * time.Second

// Trailers of a complete capture.
const (
	trailerPackets = "Ipoibd-Packets"
	trailerLost    = "Ipoibd-Lost"
)

// capture answers with a capture file. It completes the file when the capture reaches a limit,
// the daemon or the interface ends, or the client closes its half of the connection.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) {
	var q capture.Request
	var f Interface
	err := decodeRequest(http.MaxBytesReader(w, r.Body, maxBody), &q)
	if err == nil {
		f, err = pick("interface", &q.Interface, s.daemon.Fleet.Interfaces())
	}
	if err == nil {
		if err = q.Check(); err != nil {
			err = fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if err == nil {
		err = admit(s.captures, "captures")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	defer func() { <-s.captures }()
	s.keep(r)
	out := captureOutput{w, http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/x-pcapng")
	w.Header().Set("Trailer", trailerPackets+", "+trailerLost)
	sum, err := f.Capture(r.Context(), q, out)
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone, or stalls
	}
	w.Header().Set(trailerPackets, strconv.FormatUint(sum.Packets, 10))
	w.Header().Set(trailerLost, strconv.FormatUint(sum.Lost, 10))
}

// captureOutput gives the client captureStall for each write.
type captureOutput struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (o captureOutput) Write(b []byte) (int, error) {
	if err := o.control.SetWriteDeadline(time.Now().Add(captureStall)); err != nil {
		return 0, err
	}
	return o.w.Write(b)
}

func (o captureOutput) Flush() error { return o.control.Flush() }
