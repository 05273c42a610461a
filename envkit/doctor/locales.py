"""How bash, the C library, gcc and ld write their messages in other languages, from their message catalogs.

The catalogs are those of bash 5.2, glibc 2.36, gcc 12 and binutils 2.40. Python, torch and CUDA are not translated.
"""

from __future__ import annotations

CORE = (
    "核心已转储", "核心已傾印", "コアダンプ", "코어 덤프됨", "Speicherabzug geschrieben", "`core' generado",
    "образ памяти сброшен на диск", "imagem do núcleo gravada", "core dump creato", "zrzut pamięci",
)  # fmt: skip
"""A program ended by a signal, and the kernel wrote its memory."""

CRASH = (
    "段错误", "程式記憶體區段錯誤", "セグメンテーションフォルト", "세그먼테이션 오류", "세그멘테이션 오류",
    "Speicherzugriffsfehler", "Adressierungsfehler", "Erreur de segmentation", "Violación de segmento",
    "Ошибка сегмент", "Falha de segmentação", "Errore di segmentazione", "Naruszenie ochrony pamięci",
)  # fmt: skip
"""Segmentation fault."""

OTHER_SIGNALS = (
    "总线错误", "匯流排錯誤", "バスエラー", "버스 오류", "Bus-Zugriffsfehler", "Bus-Fehler", "Erreur de bus",
    "Erreur du bus", "Error del bus", "Ошибка шины", "Erro no barramento", "Erro do barramento", "Errore di bus",
    "Błąd szyny", "非法指令", "無效指令", "Ungültiger Maschinenbefehl", "Instruction non permise", "已放弃",
    "Недопустимая инструкция", "Instrucción ilegal", "Instrução ilegal", "Istruzione non consentita",
)  # fmt: skip
"""Bus error, illegal instruction and aborted."""

KILLED = (
    "已杀死", "強制結束", "強制終了", "죽었음", "Getötet", "Abgebrochen (Killed)", "Processus arrêté", "Tué",
    "Terminado (killed)", "Matado", "Убит", "Morto", "Ucciso", "Unicestwiony",
)  # fmt: skip
"""Killed, at the start of a line or after a process ID."""

NOT_FOUND = (
    "未找到命令", "指令找不到", "コマンドが見つかりません", "명령어를 찾을 수 없음", "Kommando nicht gefunden",
    "Befehl nicht gefunden", "commande introuvable", "orden no encontrada", "команда не найдена",
    "comando não encontrado", "comando non trovato", "nie znaleziono polecenia",
)  # fmt: skip
"""Command not found."""

FATAL = (
    "致命错误", "嚴重錯誤", "致命的エラー", "치명적 오류", "schwerwiegender Fehler", "erreur fatale", "error fatal:",
    "фатальная ошибка", "ölümcül hata", "критична помилка",
)  # fmt: skip
"""gcc's fatal error."""

CANNOT_FIND = (
    "找不到", "が見つかりません", "no se puede encontrar", "ne peut pas trouver", "невозможно найти",
    "não foi possível localizar", "impossibile trovare",
)  # fmt: skip
"""ld's cannot find."""

EXIT_CODE = (
    "退出码", "退出代码", "返回码", "返回代码", "結束代碼", "終了コード", "종료 코드", "exit-code", "code de sortie",
    "código de salida", "código de saída", "код выхода", "код завершения", "codice di uscita",
)  # fmt: skip
"""The word for exit code in shells, editors and CI, before the number."""

ALL = (*CORE, *CRASH, *OTHER_SIGNALS, *KILLED, *NOT_FOUND, *FATAL, *CANNOT_FIND)
