package processtest

import (
	"bytes"
	"fmt"
	"os"
)

// Usage is how much memory the process uses, in bytes.
type Usage struct {
	Locked   int64 // locked address space, used or not
	Resident int64 // memory in use
}

// ReadUsage reads the usage from /proc/self/status.
func ReadUsage() (u Usage, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Usage{}, err
	}
	for field, into := range map[string]*int64{"VmLck": &u.Locked, "VmRSS": &u.Resident} {
		_, rest, _ := bytes.Cut(status, []byte("\n"+field+":"))
		if _, err := fmt.Sscanf(string(rest), "%d kB", into); err != nil {
			return Usage{}, fmt.Errorf("read %s: %w", field, err)
		}
		*into <<= 10
	}
	return u, nil
}
