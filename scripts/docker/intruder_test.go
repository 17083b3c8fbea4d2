package docker

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// intruderEnv makes the test binary a process that attaches to ib0 and, if it succeeds, reads
// frames for a moment.
const intruderEnv = "TEST_IPOIBD_DOCKER_INTRUDER"

// intrusion is longer than a daemon takes to notice.
const intrusion = 2 * time.Second

// intrude prints the error, or the number of frames that it has read. Without a device node, it
// makes one.
func intrude() {
	const node = "/dev/net/tun"
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		const own = "/tun"
		if err = os.NewSyscallError("mknod", unix.Mknod(own, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200)))); err == nil {
			fd, err = unix.Open(own, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		}
	}
	if err == nil {
		err = attach(fd, "ib0")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	frames, buf := 0, make([]byte, 1<<16)
	for end := time.Now().Add(intrusion); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := unix.Read(fd, buf); err == nil {
			frames++
		}
	}
	fmt.Printf("attached, read %d frames\n", frames)
	os.Exit(0)
}

// attach attaches a queue to an interface.
func attach(fd int, name string) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
	return os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
}
