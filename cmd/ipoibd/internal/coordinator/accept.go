package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"time"

	"ipoibd/qprecovery/reset"
)

const (
	// maxConns bounds the connections of a host: all members, and some of which
	// the end has not been noticed.
	maxConns = reset.MaxMembers + 16
	// acceptPause is the pause after an accept that failed, for want of descriptors.
	acceptPause = 100 * time.Millisecond
)

var errFull = errors.New("too many connections")

// listen hands over newcomers until the listener is closed.
func (o *owner) listen(l *net.UnixListener) {
	for {
		nc, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			o.log.Warn("cannot accept a client of the device", "err", err)
			pause(o.ctx, acceptPause)
		case !o.report(accepted{nc}):
			nc.Close()
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// accept lets a newcomer in who may be and for whom there is room.
func (h *host) accept(nc *net.UnixConn) error {
	who, err := credentials(nc)
	if err != nil {
		return err
	}
	if h.present() >= maxConns {
		return errFull
	}
	process, err := processOf(nc)
	if err != nil {
		return err
	}
	h.admit(nc, who.Pid, process)
	return nil
}

// admit takes a connection over and watches its process, if it is known.
func (h *host) admit(nc net.Conn, pid int32, process *process) {
	id := h.o.nextConn()
	h.peers[id] = &peer{who: reset.Peer{PID: pid}, process: process, conn: h.o.newConn(id, nc, strict)}
	if process == nil {
		return
	}
	h.o.spawn(func() {
		if process.wait() {
			h.o.report(died{id})
		}
	})
}

func (h *host) present() (n int) {
	for _, p := range h.peers {
		if !p.lost {
			n++
		}
	}
	return n
}

// refuse counts a connection that was not let in, or was thrown out. Each time
// that their number has doubled one is logged, so a flood does not fill the log.
func (o *owner) refuse(who, why any) {
	o.refused++
	if bits.OnesCount64(o.refused) == 1 {
		o.log.Warn("refused a client of the device", "client", fmt.Sprint(who), "reason", fmt.Sprint(why), "so_far", o.refused)
	}
}
