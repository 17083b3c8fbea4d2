package share

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// handoverLimit bounds each step of sending the map to another daemon.
const handoverLimit = time.Second

// errNoMap means that a daemon sent no descriptor, because it belongs to another user.
var errNoMap = errors.New("the daemon sent no map")

// socketName is the name of the UNIX socket through which the daemon of a slot sends the map.
func socketName(slot int) string { return strconv.Itoa(slot) + ".sock" }

// offer listens for the daemons that join. The caller has claimed the slot.
func (r *registry) offer(slot int) (*net.UnixListener, error) {
	path := r.path(socketName(slot))
	_ = os.Remove(path) // left by a daemon that was killed
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// serve sends a descriptor to each process of this user that connects, until the listener is
// closed.
func serve(l *net.UnixListener, fd int) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(lockPause) // too many open descriptors
			continue
		}
		if user, err := peerUser(conn); err == nil && user == uint32(os.Geteuid()) {
			_ = conn.SetDeadline(time.Now().Add(handoverLimit))
			_, _, _ = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
		}
		_ = conn.Close()
	}
}

func peerUser(conn *net.UnixConn) (user uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			user = cred.Uid
		}
	})
	return user, errors.Join(cerr, err)
}

// fetchAny gets the map from the first daemon that answers. It asks all of them at once, because
// some may be stopped (SIGSTOP), and meanwhile the caller's lock keeps other daemons from joining.
func (r *registry) fetchAny(others []registration) (sockets int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), handoverLimit)
	defer cancel()
	type answer struct {
		fd  int
		err error
	}
	answers := make(chan answer)
	for i := range others {
		go func() {
			fd, err := r.fetch(ctx, others[i].slot)
			answers <- answer{fd, err}
		}()
	}
	sockets = -1
	for range others {
		switch a := <-answers; {
		case a.err != nil:
			err = a.err
		case sockets >= 0:
			_ = unix.Close(a.fd)
		default:
			sockets = a.fd
			cancel()
		}
	}
	if sockets < 0 {
		return -1, fmt.Errorf("%w: none of %d daemons answers: %w", ErrNotJoined, len(others), err)
	}
	return sockets, nil
}

// fetch gets the map from the daemon of a slot, unless the context ends.
func (r *registry) fetch(ctx context.Context, slot int) (fd int, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.path(socketName(slot)), Net: "unix"})
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return -1, err
	}
	if len(messages) != 1 {
		return -1, errNoMap
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil // the control message has room for one
}
