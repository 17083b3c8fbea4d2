package rdma

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// User is a user of a device: a process that has its verbs interface open, or a part of the
// kernel.
type User struct {
	PID  int // 0: the kernel
	Name string
}

func (u User) String() string {
	if u.PID == 0 {
		return "the kernel's " + u.Name
	}
	return fmt.Sprintf("%s (pid %d)", u.Name, u.PID)
}

// Users returns the users of the device that the caller may see: processes of its PID
// namespace, those of other users only with CAP_SYS_PTRACE. It reads all of /proc. The error
// wraps [hca.ErrNoMemory] if processes may be missing because descriptors or memory ran out.
func Users(d Device) ([]User, error) {
	proc := &noting{FS: os.DirFS("/proc")}
	users := holders(proc, d.Verbs)
	kernel, err := kernelUsers(d.Index)
	return append(users, kernel...), errors.Join(err, proc.noted())
}

// holders returns the processes with a descriptor of a verbs interface.
func holders(proc fs.FS, verbs string) (out []User) {
	if verbs == "" {
		return nil
	}
	entries, _ := fs.ReadDir(proc, ".")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && holds(proc, e.Name(), verbs) {
			out = append(out, User{pid, cmp.Or(optional(proc, e.Name(), "comm"), "a process")})
		}
	}
	return out
}

// holds reports whether a process has the interface open. The path of /dev does not matter,
// and the device node may already be deleted.
func holds(proc fs.FS, pid, verbs string) bool {
	dir := path.Join(pid, "fd")
	fds, _ := fs.ReadDir(proc, dir)
	return slices.ContainsFunc(fds, func(fd fs.DirEntry) bool {
		target, err := fs.ReadLink(proc, path.Join(dir, fd.Name()))
		return err == nil && strings.HasSuffix(strings.TrimSuffix(target, " (deleted)"), "/infiniband/"+verbs)
	})
}

// Commands and attributes of rdma_netlink.h.
const (
	cmdResQPGet   = 10
	attrResQP     = 19
	attrResQPItem = 20
	attrResKern   = 29
)

// management is the kernel's own user of the queue pairs 0 and 1 of every device
// (drivers/infiniband/core/mad.c).
const management = "ib_core"

// kernelUsers returns the parts of the kernel, except management, that have queue pairs on a
// device.
func kernelUsers(index uint32) ([]User, error) {
	req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|cmdResQPGet, unix.NLM_F_DUMP)
	req.AddData(nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, binary.NativeEndian.AppendUint32(nil, index)))
	msgs, err := req.Execute(unix.NETLINK_RDMA, 0)
	if err != nil {
		return nil, linkError("list queue pairs", err)
	}
	var names []string
	for _, m := range msgs {
		names = append(names, kernelNames(m)...)
	}
	slices.Sort(names)
	var out []User
	for _, n := range slices.Compact(names) {
		if n != management {
			out = append(out, User{Name: n})
		}
	}
	return out, nil
}

// kernelNames returns the kernel names of the queue pairs in a message. Queue pairs of
// processes have none.
func kernelNames(msg []byte) (out []string) {
	for _, table := range nested(msg, attrResQP) {
		for _, qp := range nested(table, attrResQPItem) {
			for _, name := range nested(qp, attrResKern) {
				out = append(out, strings.TrimRight(string(name), "\x00"))
			}
		}
	}
	return out
}

// nested returns the values of the attributes of a type in a message (struct nlattr,
// netlink(7)). It stops at the first malformed attribute.
func nested(msg []byte, typ uint16) (out [][]byte) {
	const header, align = unix.SizeofNlAttr, unix.NLA_ALIGNTO
	for len(msg) >= header {
		n := int(binary.NativeEndian.Uint16(msg))
		if n < header || n > len(msg) {
			break
		}
		if binary.NativeEndian.Uint16(msg[2:])&nl.NLA_TYPE_MASK == typ {
			out = append(out, msg[header:n])
		}
		msg = msg[min((n+align-1)/align*align, len(msg)):]
	}
	return out
}
