package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"ipoibd/scripts/vm/image"
	"ipoibd/scripts/vm/kernel"
)

// programs are the programs of this machine that every guest of its architecture has, in addition to the
// applets of busybox, and their Debian packages.
var programs = []struct{ name, pkg string }{
	{"sh", "dash"},            // busybox's sh prefers applets to programs,
	{"nsenter", "util-linux"}, // so does its nsenter
	{"ip", "iproute2"},
	{"rdma", "iproute2"},
	{"ss", "iproute2"},
	{"tc", "iproute2"},
	{"bridge", "iproute2"},
	{"ethtool", "ethtool"},
	{"ping", "iputils-ping"},
	{"iperf3", "iperf3"},
	{"ibv_devices", "ibverbs-utils"},
	{"ibv_devinfo", "ibverbs-utils"},
	{"ibv_asyncwatch", "ibverbs-utils"},
	{"ib_send_bw", "perftest"},
	{"ib_send_lat", "perftest"},
}

// Programs of this tree in a kit.
const (
	agentPkg    = "ipoibd/scripts/vm/agent"
	ipoibdPkg   = "ipoibd/cmd/ipoibd"
	numberedPkg = "ipoibd/scripts/vm/numbered"
)

// providers are the drivers of libibverbs for the devices of guests: Soft-RoCE, and HCAs under rdmavt, by their names.
var providers = []string{"rxe", "hfi1verbs"}

// providerFile is the pattern of a driver's file.
const providerFile = "/usr/lib/x86_64-linux-gnu/libibverbs/lib%s-rdmav*.so"

// The files of a kit for each series.
const (
	vmlinuxName    = "vmlinux"
	imageName      = "initramfs"
	releaseName    = "release"
	infiniBandName = "infiniband" // a folder of modules
)

// makeKit fills a folder with the files that guests boot from: a folder for each
// series of kernels with vmlinux, initramfs and release. Errors that wrap
// kernel.ErrMissing name what this machine lacks.
func makeKit(ctx context.Context, dir string, arch kernel.Arch) error {
	if err := check(arch); err != nil {
		return err
	}
	wanted := map[string]string{agentPkg: "CGO_ENABLED=0"}
	if hasPrograms(arch) {
		wanted[numberedPkg], wanted[ipoibdPkg] = "CGO_ENABLED=0", "CGO_ENABLED=1"
	}
	for pkg, cgo := range wanted {
		if err := compile(ctx, dir, pkg, cgo, "GOARCH="+string(arch)); err != nil {
			return err
		}
	}
	for _, b := range kernel.AllBuilds {
		if b.Arch != arch {
			continue
		}
		k, err := kernel.Get(ctx, b, os.Stderr)
		if err != nil {
			return err
		}
		if err := addKernel(ctx, filepath.Join(dir, string(b.Series)), dir, k); err != nil {
			return err
		}
	}
	return nil
}

// hasPrograms reports whether guests have programs of this machine, and ipoibd, which needs libraries of this machine.
func hasPrograms(arch kernel.Arch) bool { return arch == kernel.AMD64 }

// Program returns the path, on this machine, of a program of this tree that guests
// have in /usr/bin: ipoibd or numbered.
func Program(name string) string { return filepath.Join(os.Getenv(kitEnv), name) }

// check checks for everything that guests need except kernels, and reports all that
// is missing.
func check(arch kernel.Arch) error {
	var errs []error
	if runtime.GOARCH != string(kernel.AMD64) {
		errs = append(errs, errors.New("guests need an amd64 machine"))
	}
	lacks := func(name, pkg string) {
		if _, err := exec.LookPath(name); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing (Debian package %s)", name, pkg))
		}
	}
	lacks(machines[arch].emulator, machines[arch].pkg)
	if hasPrograms(arch) {
		lacks("busybox", "busybox-static")
		for _, p := range programs {
			lacks(p.name, p.pkg)
		}
		for _, name := range providers {
			if found, _ := filepath.Glob(fmt.Sprintf(providerFile, name)); len(found) == 0 {
				errs = append(errs, fmt.Errorf("the %s driver of libibverbs is missing (Debian package ibverbs-providers)", name))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", kernel.ErrMissing, err)
	}
	return nil
}

// compile builds a program of ours into dir.
func compile(ctx context.Context, dir, pkg string, env ...string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", dir+"/", pkg)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// addKernel creates the folder of a series.
func addKernel(ctx context.Context, into, built string, k kernel.Kernel) error {
	if err := os.Mkdir(into, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(k.Vmlinux, filepath.Join(into, vmlinuxName)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(into, releaseName), []byte(k.Release()), 0o644); err != nil {
		return err
	}
	if len(k.InfiniBand) > 0 {
		if err := addInfiniBand(ctx, filepath.Join(into, infiniBandName), k); err != nil {
			return err
		}
	}
	return writeImage(filepath.Join(into, imageName), built, k)
}

// writeImage writes the image for a kernel, with our programs from a folder.
func writeImage(into, built string, k kernel.Kernel) error {
	f, err := os.Create(into)
	if err != nil {
		return err
	}
	defer f.Close()
	b := image.New(f)
	for _, dir := range []string{"/dev", "/proc", "/sys", "/tmp", "/run", "/root"} {
		b.Dir(dir)
	}
	b.Copy("/init", filepath.Join(built, path.Base(agentPkg)))
	for _, m := range k.Modules {
		b.Copy("/modules/"+filepath.Base(m), m)
	}
	if hasPrograms(k.Arch) {
		for _, pkg := range []string{ipoibdPkg, numberedPkg} {
			b.Program("/usr/bin/"+path.Base(pkg), filepath.Join(built, path.Base(pkg)))
		}
		if err := addPrograms(b); err != nil {
			return err
		}
	}
	if err := b.Close(); err != nil {
		return err
	}
	return f.Close()
}

// image returns the path of the image for a guest: that of the kit, or one with further programs behind it. The kernel
// unpacks one archive after the other.
func (g *Guest) image(spec Spec) (string, error) {
	common := filepath.Join(os.Getenv(kitEnv), string(spec.Series), imageName)
	if len(spec.Programs) == 0 {
		return common, nil
	}
	data, err := os.ReadFile(common)
	if err != nil {
		return "", err
	}
	whole := bytes.NewBuffer(data)
	b := image.New(whole)
	for _, name := range spec.Programs {
		from, err := exec.LookPath(name)
		if err != nil {
			return "", err
		}
		to := name
		if !path.IsAbs(name) {
			to = path.Join("/usr/bin", name)
		}
		b.Program(to, from)
	}
	if err := b.Close(); err != nil {
		return "", err
	}
	into := filepath.Join(g.tb.TempDir(), imageName)
	return into, os.WriteFile(into, whole.Bytes(), 0o644)
}

// addPrograms adds the programs of this machine, and busybox for all other names.
func addPrograms(b *image.Builder) error {
	b.File("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	b.File("/etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	for _, name := range providers {
		b.File("/etc/libibverbs.d/"+name+".driver", 0o644, []byte("driver "+name+"\n"))
		drivers, err := filepath.Glob(fmt.Sprintf(providerFile, name))
		if err != nil {
			return err
		}
		for _, so := range drivers {
			b.Program(so, so)
		}
	}
	for _, p := range programs {
		from, err := exec.LookPath(p.name)
		if err != nil {
			return err
		}
		b.Program("/usr/bin/"+p.name, from)
	}
	return addBusybox(b)
}

func addBusybox(b *image.Builder) error {
	from, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	out, err := exec.Command(from, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	b.Program("/usr/bin/busybox", from)
	for applet := range strings.FieldsSeq(string(out)) {
		if at := "/usr/bin/" + applet; !b.Has(at) {
			b.Symlink(at, "busybox")
		}
	}
	return nil
}
