# The Homebrew formula of Weir. tools/release writes the version and the checksums.
class Weir < Formula
  desc "Rate limit service for Envoy and Istio"
  homepage "https://github.com/weir-ratelimit/weir"
  version "${version}"
  license "Apache-2.0"

  on_macos do
    on_arm do
      url "https://github.com/weir-ratelimit/weir/releases/download/v${version}/weir_${version}_darwin_arm64.tar.gz"
      sha256 "${darwin_arm64}"
    end
    on_intel do
      url "https://github.com/weir-ratelimit/weir/releases/download/v${version}/weir_${version}_darwin_amd64.tar.gz"
      sha256 "${darwin_amd64}"
    end
  end

  on_linux do
    on_arm do
      url "https://github.com/weir-ratelimit/weir/releases/download/v${version}/weir_${version}_linux_arm64.tar.gz"
      sha256 "${linux_arm64}"
    end
    on_intel do
      url "https://github.com/weir-ratelimit/weir/releases/download/v${version}/weir_${version}_linux_amd64.tar.gz"
      sha256 "${linux_amd64}"
    end
  end

  def install
    bin.install "weir"
    doc.install "licenses"
    system bin/"weir", "init", etc/"weir" unless (etc/"weir/rules").exist?
  end

  service do
    run [opt_bin/"weir", "serve", "--rules", etc/"weir/rules"]
    environment_variables WEIR_GRPC_ADDR: "127.0.0.1:8081", WEIR_HTTP_ADDR: "127.0.0.1:8080"
    keep_alive crashed: true
    log_path var/"log/weir.log"
    error_log_path var/"log/weir.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/weir --version")
    system bin/"weir", "init", "demo"
    system bin/"weir", "check", "demo/rules"
  end
end
