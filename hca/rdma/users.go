package rdma

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// User is a user of a device: a process that has a context of it open, or a part of the
// kernel.
type User struct {
	PID  int    // 0: a part of the kernel, or a process without a PID here
	Name string // of the process's program or the part of the kernel; empty: unknown
}

func (u User) String() string {
	switch {
	case u.PID != 0:
		return fmt.Sprintf("%s (pid %d)", cmp.Or(u.Name, "a process"), u.PID)
	case u.Name != "":
		return "the kernel's " + u.Name
	}
	return "an unknown process, perhaps of another PID namespace"
}

// tracked is a kind of resource that the kernel tracks (drivers/infiniband/core/restrack.c):
// the command that lists the resources of a device, and the attributes of the list and of an entry
// (rdma_netlink.h). The kernel lists the resources of all processes to any caller, and does not ask
// the device for either kind, so a device that hangs does not delay the answer.
type tracked struct {
	command      int
	table, entry uint16
}

var (
	contexts = tracked{22, 86, 87} // RDMA_NLDEV_CMD_RES_CTX_GET, since Linux 5.14
	domains  = tracked{14, 46, 47} // RDMA_NLDEV_CMD_RES_PD_GET: every user of the kernel has a protection domain
)

// Attributes of an entry. The kernel tracks the thread that created the resource, so attrResPID is
// the ID of that thread. If it has ended, or has no ID in the caller's PID namespace, its entry
// has neither attribute.
const (
	attrResPID  = 28
	attrResKern = 29
)

// Processes returns the processes that have a context of a device open. Each is the process
// that opened the context, even if another one has inherited it. A process is unknown once the
// thread that opened the context has ended. It does not block.
func Processes(d Device) ([]User, error) {
	users, err := contexts.users(d)
	if err != nil {
		return nil, fmt.Errorf("%w; Linux before 5.14 cannot list them", err)
	}
	return users, nil
}

// management is the kernel's own user of the queue pairs 0 and 1 of every device
// (drivers/infiniband/core/mad.c).
const management = "ib_core"

// Users returns the processes and the parts of the kernel that use a device, except
// management. It does not block.
func Users(d Device) ([]User, error) {
	users, err := Processes(d)
	if err != nil {
		return nil, err
	}
	kernel, err := domains.users(d)
	if err != nil {
		return users, err
	}
	for _, u := range kernel {
		if u.PID == 0 && u.Name != "" && u.Name != management {
			users = append(users, u)
		}
	}
	return users, nil
}

// users returns the users that have such resources of a device, sorted, each once.
func (t tracked) users(d Device) ([]User, error) {
	req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|t.command, unix.NLM_F_DUMP)
	req.AddData(nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, binary.NativeEndian.AppendUint32(nil, d.Index)))
	msgs, err := req.Execute(unix.NETLINK_RDMA, 0)
	if err != nil {
		return nil, linkError("list the users of "+d.Name, err)
	}
	var out []User
	for _, m := range msgs {
		out = append(out, t.parse(m)...)
	}
	identify(os.DirFS("/proc"), out)
	slices.SortFunc(out, func(a, b User) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(out), nil
}

// identify replaces the IDs of threads by the IDs of their processes, with their names. An ID that
// /proc does not show stays.
func identify(proc fs.FS, users []User) {
	for i := range users {
		u := &users[i]
		if u.PID == 0 {
			continue
		}
		for line := range strings.Lines(optional(proc, strconv.Itoa(u.PID), "status")) {
			text, _ := strings.CutPrefix(line, "Tgid:")
			if pid, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
				u.PID = pid
			}
		}
		u.Name = optional(proc, strconv.Itoa(u.PID), "comm")
	}
}

// parse returns the user of each entry of a message. Users that are threads have no name.
func (t tracked) parse(msg []byte) (out []User) {
	for _, table := range nested(msg, t.table) {
		for _, entry := range nested(table, t.entry) {
			var u User
			for _, pid := range nested(entry, attrResPID) {
				if len(pid) >= 4 {
					u.PID = int(binary.NativeEndian.Uint32(pid))
				}
			}
			for _, name := range nested(entry, attrResKern) {
				u.Name = strings.TrimRight(string(name), "\x00")
			}
			out = append(out, u)
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
