package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// MaxPingTimeout is the longest time that a ping may wait.
const MaxPingTimeout = time.Minute

// PingRequest sends one echo request to a peer, and waits for its answer.
type PingRequest struct {
	Interface string          `json:"interface,omitempty"` // empty: the only one
	Target    string          `json:"target"`              // an IP address on the link, or a peer's GID or MAC
	Size      int             `json:"size"`                // bytes without IPoIB header
	Timeout   journal.Seconds `json:"timeout_seconds"`
	Reply     *report.Echo    `json:"reply,omitempty"` // set by the daemon if there was an answer
}

func (*PingRequest) url() string { return "/v1/ping" }

func (q *PingRequest) order(d Daemon) (order, error) {
	q.Reply = nil
	if q.Timeout <= 0 || q.Timeout > journal.Seconds(MaxPingTimeout) {
		return nil, fmt.Errorf("%w: a timeout of %s: it must be above 0 and at most %s",
			ErrInvalid, q.Timeout, MaxPingTimeout)
	}
	return to("interface", &q.Interface, d.Fleet.Interfaces, func(f Interface, ctx context.Context) (err error) {
		limited, cancel := context.WithTimeout(ctx, time.Duration(q.Timeout))
		defer cancel()
		q.Reply, err = f.Ping(limited, q.Target, q.Size)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // the interface hangs
			err = nil
		}
		return err
	})
}
